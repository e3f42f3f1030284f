"""Cases that the roles of the chart are held against: stories of what each program asks of a cluster."""
