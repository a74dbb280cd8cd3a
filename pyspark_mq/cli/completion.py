"""`pyspark-mq completion`: what a shell has to read in order to complete commands, options, topics and groups."""

import click
from click.shell_completion import get_completion_class

PROGRAM = "pyspark-mq"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete words of commands.

    It completes commands, options, stores, topics and groups. For bash: eval "$(pyspark-mq completion bash)", in
    ~/.bashrc for good; zsh likewise in ~/.zshrc. For fish: pyspark-mq completion fish >
    ~/.config/fish/completions/pyspark-mq.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{PROGRAM}_COMPLETE".replace("-", "_").upper()
    click.echo(kind(ctx.find_root().command, {}, PROGRAM, variable).source())
