"""Server-side apply and metadata.managedFields: ownership of fields."""
