"""The provider for EC2. Nothing here is imported before the settings name it: what it needs comes with an extra."""

from importlib.util import find_spec

if find_spec("aiobotocore") is None:
    raise ImportError("No module named 'aiobotocore'; it comes with: pip install 'gracectl[aws]'")
