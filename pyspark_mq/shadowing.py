"""`store` is a plain name that another project may use too: say so before a confusing error does."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def require_own_store() -> None:
    """Raises `ImportError` unless `import store` gives the package that is installed beside this one."""
    spec = find_spec("store")
    found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    own = Path(__file__).resolve().parent.parent / "store" / "__init__.py"
    if found != own:
        where = f"{found} shadows it" if found else "there is none on sys.path"
        raise ImportError(
            f"pyspark-mq needs its own package 'store' at {own}, but {where}. "
            "Rename or remove the other one, or put pyspark-mq first on PYTHONPATH"
        )
