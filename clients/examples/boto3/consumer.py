"""Pack orders until stopped, and print each packed order."""

import json
import os
import signal
import sqlite3
import sys
import time
from contextlib import closing
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from queues import open_orders

is_ending = False


def pack(database: sqlite3.Connection, number: int, article: str) -> None:
    """Pack an order. A repeated order changes nothing."""
    with database:
        database.execute("INSERT OR IGNORE INTO packed VALUES (?, ?)", (number, article))


def work(queue: Any, database: sqlite3.Connection) -> None:
    """Receive up to ten orders; delete each message after its order is packed."""
    for message in queue.receive_messages(MaxNumberOfMessages=10, WaitTimeSeconds=5):
        order = json.loads(message.body)
        pack(database, order["order"], order["article"])
        message.delete()
        print(f"order {order['order']} is packed", flush=True)


def end(number: int, frame: object) -> None:
    """Stop on Ctrl-C or SIGTERM: pack the received orders, then receive no more."""
    global is_ending
    is_ending = True


if __name__ == "__main__":
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    with closing(sqlite3.connect(os.environ.get("SHOP_DB", "shop.sqlite3"), timeout=30)) as shop:
        shop.execute("CREATE TABLE IF NOT EXISTS packed (id INTEGER PRIMARY KEY, article TEXT)")
        orders = None
        while not is_ending:
            try:
                orders = orders or open_orders()
                work(orders, shop)
            except (BotoCoreError, ClientError) as error:
                print(f"the queue does not answer: {error}", file=sys.stderr)
                time.sleep(0.5)
