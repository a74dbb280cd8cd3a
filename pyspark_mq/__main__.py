"""The command `pyspark-mq`, also as `python -m pyspark_mq`."""

import signal
import sys

from pyspark_mq.requirements import require_own_store


def main() -> None:
    try:
        try:
            require_own_store()
        except ImportError as error:
            sys.exit(f"Error: {error}")
        from pyspark_mq import cli
    except KeyboardInterrupt:  # the import takes half a second, and no command handles Ctrl-C yet
        print("Interrupted: nothing was done", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    cli.main(prog_name="pyspark-mq")


if __name__ == "__main__":
    main()
