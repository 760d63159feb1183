"""Report exceptions of a user's own classes in one line that names the class and the line that raised."""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from fedray.common.errors import Diverged, PluginError, UserError, join_lines
from fedray.components.base import Component


@contextlib.contextmanager
def blame(*components: Component) -> Iterator[None]:
    """Turn an exception of a user's own class within a block into a PluginError; other errors pass unchanged.

    Args:
        components: the run's. The error names the one whose module is innermost in the traceback.
    """
    try:
        yield
    except (UserError, Diverged):
        raise
    except (Exception, SystemExit) as error:
        files = {_find_file(one): one for one in components if ":" in one.name}
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if (component := files.get(frame.filename)) is not None:
                place = f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
                said = f"{component.section}: {component.name} raises {join_lines(error)} ({place})"
                raise PluginError(said, "".join(traceback.format_exception(error))) from error
        raise


def _find_file(component: Component) -> str | None:
    module = sys.modules.get(component.name.partition(":")[0])
    return getattr(module, "__file__", None)
