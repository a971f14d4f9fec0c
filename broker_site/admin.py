"""Admin pages of people and of django-q2's tables, in the console's clothes."""

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
# Generic to the type checker only; at run time it takes no parameter.
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]
    """People who may use the console."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    # Two lists side by side do not fit: one field that finds what is typed does.
    filter_horizontal = ()
    autocomplete_fields = ("groups",)


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):
    """What groups of people may do."""

    filter_horizontal = ()


def restyle(model: Any) -> None:
    """Keep a foreign page's columns and actions and give it the console's look."""
    former = type(admin.site.get_model_admin(model))
    admin.site.unregister(model)
    admin.site.register(model, type(former.__name__, (former, ModelAdmin), {}))


# By name: only delivery.runtime imports django-q2.
for _model in apps.get_app_config("django_q").get_models():
    if admin.site.is_registered(_model):
        restyle(_model)
