"""Server-side apply and metadata.managedFields: who owns which field of an object."""
