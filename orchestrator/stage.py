"""A move is over in a second; who wants to see it needs a picture that keeps up.

On a terminal: both pools, and the stage graph of the query as it passes from one to the other. Elsewhere: a
line for each thing that happens.
"""

import sys
from types import TracebackType

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from godwit.orchestrator.draw import console, stage_trees
from godwit.orchestrator.observe import Observation
from godwit.orchestrator.pools import Pool
from godwit.planrewrite.select import kept_and_lost


class Stage:
    def __init__(self) -> None:
        self._pools: tuple[Pool, ...] = ()
        self._seen: Observation | None = None
        self._console = console(sys.stderr)
        self._live = Live(
            console=self._console, get_renderable=self._picture, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> "Stage":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def title(self, text: str) -> None:
        self._pools, self._seen = (), None
        self._console.print(Text(text, "bold"))

    def enter(self, *pools: Pool) -> None:
        self._pools = pools

    def tell(self, pool: Pool, doing: str) -> None:
        if pool.doing != doing:
            pool.doing = doing
            if not self._console.is_terminal:
                self._console.print(f"  {pool.name}: {doing}")

    def show(self, seen: Observation | None) -> None:
        self._seen = seen

    def _picture(self) -> RenderableType:
        panels = Columns([Panel(self._pool(pool), title=pool.name, width=40) for pool in self._pools])
        seen = self._seen
        if seen is None:
            return panels
        return Group(panels, *stage_trees(seen.graph, kept_and_lost(seen.graph, seen.selection)))

    def _pool(self, pool: Pool) -> RenderableType:
        return Group(Text(f"{pool.cores} cores", "dim"), Text(pool.doing))
