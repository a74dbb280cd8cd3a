"""`pyspark-mq doctor`."""

import sys

import click

from pyspark_mq.doctor import checks


@click.command()
@click.argument("store", type=click.Path(file_okay=False), required=False)
def doctor(store: str | None) -> None:
    """Check what Spark needs here, and STORE if given.

    That is Python, Java, PySpark and the Python that Spark starts. The exit code is 1 if something needs to be changed.
    """
    failed = False
    for check in checks(store):
        failed |= bool(check.remedy)
        click.echo(f"{'FAIL' if check.remedy else 'ok':<4}  {check.what}: {check.found}")
        if check.remedy:
            click.echo(f"      {check.remedy}")
    sys.exit(1 if failed else 0)
