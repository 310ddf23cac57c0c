"""`godwit completion`: what a shell has to read to complete commands, options and names of jobs."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell: eval "$(godwit completion bash)"."""
    found = get_completion_class(shell)
    assert found is not None, "click knows each of the shells that the argument allows"
    print(found(ctx.find_root().command, {}, "godwit", "_GODWIT_COMPLETE").source())
