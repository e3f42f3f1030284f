"""The disruption controller: voluntary terminations of unhealthy, labelled and expired nodes."""
