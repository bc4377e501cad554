"""Every error raised on purpose. A message says what was given, why that is wrong, and what to do."""


class DrivetrainError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(DrivetrainError, ValueError):
    """A setting is unknown, malformed, or contradicts another one or the machine."""


class InputError(DrivetrainError, TypeError):
    """An argument has a type or a form that the call cannot work on."""


class UsageError(DrivetrainError, RuntimeError):
    """Calls came in an order, or on an object, that cannot be right."""


class CollectiveError(DrivetrainError, RuntimeError):
    """A collective could not be carried out: ranks disagree about it, or one of them did not join."""


class LaunchError(DrivetrainError, RuntimeError):
    """Processes could not be started, or one of them failed."""


class MissingDependency(DrivetrainError, ImportError):
    """An optional package is absent or too old."""
