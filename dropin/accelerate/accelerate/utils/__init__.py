"""Everything that scripts import from here is at home in the submodules, and imported when it is first used."""

from accelerate._names import attach

# A function and its module share this name. An import of the module later would replace the function, so it is first.
from accelerate.utils.tqdm import tqdm as tqdm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from accelerate.utils.dataclasses import *  # noqa: F403
    from accelerate.utils.environment import *  # noqa: F403
    from accelerate.utils.imports import *  # noqa: F403
    from accelerate.utils.memory import *  # noqa: F403
    from accelerate.utils.operations import *  # noqa: F403
    from accelerate.utils.other import *  # noqa: F403
    from accelerate.utils.random import *  # noqa: F403
    from accelerate.utils.versions import *  # noqa: F403

__getattr__, __dir__ = attach(__name__)
