"""A standby moves a query of its own before it has a job. Of that nothing may be left when the job comes."""

from pathlib import Path

from tests.spark.pair import driver


def test_a_rehearsal_leaves_nothing_behind(tmp_path: Path) -> None:
    with driver() as standby:
        before = standby.spark.conf.get("spark.sql.shuffle.partitions")
        standby.jvm.rehearse(f"file://{tmp_path}/rehearsal")
        assert list(tmp_path.iterdir()) == []
        assert standby.graph().stages_finished == 0
        assert not standby.report().used
        assert standby.spark.conf.get("spark.sql.shuffle.partitions") == before
        assert standby.spark.catalog.listTables() == []
