"""The command `pyspark-mq`. Only `demo` starts Spark; the other commands are plain Python.

Exit codes: 2 for wrong usage, 1 for other errors, 130 for Ctrl-C.
"""

from importlib import import_module

import click

from pyspark_mq.cli.commands import Commands

# A command's module is imported when the command runs, to keep start-up fast.
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
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        command = getattr(import_module(f"pyspark_mq.cli.{_MODULES[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyspark-mq")
def main() -> None:
    """Keep messages in a local log in RocketMQ's file format, and stream them with Spark.

    STORE is the store's directory; 'topic create' creates it. Run 'pyspark-mq COMMAND --help' for each command.
    """
