"""The command line."""

import sys
import tempfile
from pathlib import Path

from bench import databases
from bench.adapters import BenchError
from bench.broker import Hookstation
from bench.rows import ROWS
from bench.sink import Sink
from bench.stage import QUICK, Stage


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="hookstation-bench-"))
    with databases.fresh("mariadb", folder) as database, Sink() as sink:
        print(database.describe())
        broker = Hookstation(database.url, folder)
        try:
            broker.start()
            stage = Stage(broker, database, sink, folder, QUICK)
            for row in ROWS:
                try:
                    found = row.run(stage)
                except BenchError as error:
                    print(row.key, error)
                    continue
                stage.values.update(found)
                for key, value in found.items():
                    print(f"{key:20} {value:10.3f}")
        finally:
            broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
