"""The OpenAPI documents of the server: what it serves and what its objects look like, made from what is served now."""
