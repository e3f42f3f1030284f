"""The settings: what they may say, where they come from (one YAML file, the environment), and how they are shown."""

from gracectl.config.errors import ConfigError
from gracectl.config.reading import Reading, load_settings, read_settings
from gracectl.config.settings import RELOADABLE, Settings

__all__ = ("RELOADABLE", "ConfigError", "Reading", "Settings", "load_settings", "read_settings")
