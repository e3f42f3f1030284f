"""The disruption controller: voluntary terminations of unhealthy, labeled and expired nodes."""
