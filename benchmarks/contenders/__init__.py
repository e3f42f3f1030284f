"""Who is measured: gracectl as it is shipped, kubectl, and models of how others do it."""
