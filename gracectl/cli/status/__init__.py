"""`gracectl status`: the status of nodes, once, live or line by line; `gracectl drain` shows the same."""
