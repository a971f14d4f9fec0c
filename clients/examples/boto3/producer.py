"""Place orders: `python producer.py 1 20` places 1 to 20 and prints each stored number."""

import json
import sys
import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from queues import open_orders

PAUSE_S = 0.02


def place(queue: Any, number: int) -> None:
    """Send an order until it is stored. After an error it may be stored twice."""
    while True:
        try:
            queue.send_message(MessageBody=json.dumps({"order": number, "article": "tea"}))
        except (BotoCoreError, ClientError) as error:
            print(f"order {number} is sent again: {error}", file=sys.stderr)
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:])
    orders = open_orders()
    for number in range(first, last + 1):
        place(orders, number)
        print(number, flush=True)
        time.sleep(PAUSE_S)
