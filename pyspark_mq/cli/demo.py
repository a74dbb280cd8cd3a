"""`pyspark-mq demo`."""

import sys

import click


@click.command()
@click.option("--store", type=click.Path(file_okay=False), help="Keep the store here (default: a temporary one).")
@click.option("--rate", type=click.IntRange(1), default=25_000, show_default=True, help="Messages a second to append.")
def demo(store: str | None, rate: int) -> None:
    """Stream the flights that left New York in 2013 through Spark.

    One process appends them, 336,776 messages; meanwhile Spark reads them and sums them up.
    """
    from pyspark_mq.demo import run_demo
    from pyspark_mq.neighbours import require_pyspark

    try:
        require_pyspark()
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if run_demo(store, rate) else 1)
