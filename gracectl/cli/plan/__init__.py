"""`gracectl plan`: the forecast of a drain as a table, a timeline, JSON, SVG or HTML."""
