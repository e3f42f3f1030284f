"""The provider for EC2. Nothing here is imported before the settings name it: aiobotocore comes with an extra."""
