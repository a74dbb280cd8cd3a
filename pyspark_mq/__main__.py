"""The command `pyspark-mq`, also as `python -m pyspark_mq`; it says in one line what it cannot start without."""

import sys

from pyspark_mq.neighbours import require_own_store


def main() -> None:
    """Run `pyspark_mq.cli`, which imports `store`."""
    try:
        require_own_store()
    except ImportError as error:
        sys.exit(f"Error: {error}")
    from pyspark_mq import cli

    cli.main(prog_name="pyspark-mq")


if __name__ == "__main__":
    main()
