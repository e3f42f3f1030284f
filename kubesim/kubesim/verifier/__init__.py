"""An independent witness: watches the cluster from outside and says whether a budget was broken."""
