"""The old place of what is in `accelerate.utils.memory`."""

import warnings

from accelerate._names import attach

warnings.warn("accelerate.memory_utils has moved: import from accelerate.utils.memory.", FutureWarning, stacklevel=2)

__getattr__, __dir__ = attach(__name__)
