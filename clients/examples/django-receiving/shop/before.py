"""A shop that receives signed webhooks without the client, with Django."""

import os

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from standardwebhooks import Webhook, WebhookVerificationError

from shop.models import Handled, Order

NEVER = {"Hookstation-Retry": "never"}


def orders(request: HttpRequest) -> JsonResponse:
    return JsonResponse(list(Order.objects.order_by("id").values_list("id", flat=True)), safe=False)


@csrf_exempt
@require_POST
@transaction.atomic
def receive(request: HttpRequest) -> HttpResponse:
    try:
        secret = os.environ["HOOKSTATION_SECRET"]
        order = Webhook(secret).verify(request.body, dict(request.headers))
    except WebhookVerificationError as error:
        return JsonResponse({"detail": str(error)}, status=401)
    if not isinstance(order, dict) or not isinstance(order.get("id"), int):
        return JsonResponse({"detail": "no order"}, status=422, headers=NEVER)
    message_id = request.headers["webhook-id"]
    if Handled.objects.filter(key=message_id).exists():
        return HttpResponse(status=204)
    if order.get("quantity", 1) > 100:
        return JsonResponse({"detail": "more than the shop has"}, status=422, headers=NEVER)
    if order["article"] == "fresh bread" and request.headers["Hookstation-Attempt"] == "1":
        detail = {"detail": "still in the oven"}
        return JsonResponse(detail, status=409, headers={"Retry-After": "1"})
    Order.objects.update_or_create(id=order["id"], defaults={"article": order["article"]})
    Handled.objects.create(key=message_id)
    return HttpResponse(status=204)


urlpatterns = [path("orders", orders), path("hooks", receive)]
