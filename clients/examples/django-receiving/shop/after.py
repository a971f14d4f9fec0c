"""The shop of `before.py` with the client's decorators.

An order and the id of its message are stored in one transaction.
"""

from dataclasses import dataclass

from django.http import HttpRequest, JsonResponse
from django.urls import path
from hookstation_client.receiving import Event, Hooks, ModelStore, Reject, Retry

from shop import models

hooks = Hooks(store=ModelStore(models.Handled))


@dataclass
class Order:
    id: int
    article: str
    quantity: int = 1


def orders(request: HttpRequest) -> JsonResponse:
    ids = models.Order.objects.order_by("id").values_list("id", flat=True)
    return JsonResponse(list(ids), safe=False)


@hooks.on("order.*")
def order(order: Order, event: Event) -> None:
    if order.quantity > 100:
        raise Reject("more than the shop has")
    if order.article == "fresh bread" and event.attempt == 1:
        raise Retry(after=1, reason="still in the oven")
    models.Order.objects.update_or_create(id=order.id, defaults={"article": order.article})


urlpatterns = [path("orders", orders), *hooks.django_urls("hooks")]
