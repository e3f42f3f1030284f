"""How a forecast is shown to people: told in words, drawn as a chart, printed as a table, JSON, a picture or a page."""
