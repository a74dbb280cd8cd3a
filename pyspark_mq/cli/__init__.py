"""The command `pyspark-mq`: make topics, send, follow, look, copy and serve, in plain Python. Only `demo` starts Spark.

Results go to standard output, progress bars to standard error. An error is one line: exit code 2 for wrong usage, 1 for
whatever else went wrong, 130 for Ctrl-C, which says what was done.
"""

from importlib import import_module

import click

from pyspark_mq.cli.commands import Commands

# Each command is imported when it is run: `--help` aside, a command pays for its own imports only.
_MODULES = {
    "archive": "archive",
    "bench": "bench",
    "clean": "upkeep",
    "completion": "arguments",
    "console": "console",
    "demo": "demo",
    "doctor": "doctor",
    "export": "export",
    "groups": "groups",
    "query": "lookup",
    "restore": "archive",
    "send": "send",
    "serve": "serve",
    "stats": "stats",
    "tail": "tail",
    "top": "top",
    "topic": "topic",
    "verify": "upkeep",
}


class LazyCommands(Commands):
    """The commands of `_MODULES`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, sorted."""
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None for a name that is none."""
        if cmd_name not in _MODULES:
            return None
        command = getattr(import_module(f"pyspark_mq.cli.{_MODULES[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyspark-mq")
def main() -> None:
    """An embedded log store in RocketMQ's file format that Spark streams from with format("mq").

    STORE is the store's directory, which 'topic create' makes. See 'pyspark-mq COMMAND --help' for each command.
    """
