"""The command `pyspark-mq`: make topics, send, follow, look, copy and serve, in plain Python. Only `demo` starts Spark.

Results go to standard output, progress bars to standard error. An error is one line: exit code 2 for wrong usage, 1 for
whatever else went wrong, 130 for Ctrl-C, which says what was done.
"""

import click

from pyspark_mq.cli.archive import archive, restore
from pyspark_mq.cli.commands import Commands
from pyspark_mq.cli.completion import completion
from pyspark_mq.cli.demo import demo
from pyspark_mq.cli.export import export
from pyspark_mq.cli.groups import groups
from pyspark_mq.cli.query import query
from pyspark_mq.cli.send import send
from pyspark_mq.cli.serve import serve
from pyspark_mq.cli.stats import stats
from pyspark_mq.cli.tail import tail
from pyspark_mq.cli.top import top
from pyspark_mq.cli.topics import topic
from pyspark_mq.cli.upkeep import clean, verify


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pyspark-mq")
def main() -> None:
    """An embedded log store in RocketMQ's file format that Spark streams from with format("mq").

    STORE is the store's directory, which 'topic create' makes. See 'pyspark-mq COMMAND --help' for each command.
    """


for command in (demo, topic, send, tail, query, export, groups, stats, top, serve):
    main.add_command(command)
for command in (archive, restore, clean, verify, completion):
    main.add_command(command)
