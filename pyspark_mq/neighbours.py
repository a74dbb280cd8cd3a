"""What this package needs beside it, asked before it is used: a confusing error from inside helps nobody.

`store` is a plain name that another project may use too, and PyPI has a package of that name, which overwrites ours
when both are installed into one folder. Nothing of `store` is imported here, for it may not be ours.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_OLDEST_PYSPARK = (4, 2)
_OWN_NAME = "MessageStore"  # of our store


def require_own_store() -> None:
    """Raises `ImportError` unless `import store` gives the package that is installed beside this one."""
    own = Path(__file__).resolve().parent.parent / "store" / "__init__.py"
    spec = find_spec("store")
    found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    if found is not None and found != own:
        raise ImportError(
            f"pyspark-mq needs its own package 'store' at {own}, but {found} shadows it. "
            "Rename or remove the other one, or put pyspark-mq first on PYTHONPATH"
        )
    if found is None or not hasattr(import_module("store"), _OWN_NAME):
        what = "is missing" if found is None else "belongs to another package, such as PyPI's 'store'"
        raise ImportError(
            f"pyspark-mq needs its own package 'store', but {own} {what}. Remove the other one and put this one's "
            "files back: pip uninstall -y store; pip install --force-reinstall --no-deps pyspark-mq"
        )


def require_pyspark() -> None:
    """Raises `ImportError` for a PySpark without what the data source is made of."""
    from pyspark import __version__ as version

    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _OLDEST_PYSPARK:
        oldest = ".".join(map(str, _OLDEST_PYSPARK))
        raise ImportError(
            f"pyspark-mq needs PySpark {oldest} or later, this is {version}: pip install -U 'pyspark>={oldest}'"
        )
