"""How nodes stand, as `gracectl status` and `gracectl drain` show it."""
