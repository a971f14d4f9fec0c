"""Accounts: how allauth lets people in, and what it may not decide by itself."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.decorators import secure_admin_login
from allauth.account.forms import LoginForm
from allauth.account.stages import EmailVerificationStage
from allauth.mfa.adapter import DefaultMFAAdapter
from django.conf import settings
from django.http import HttpRequest
from django.urls import Resolver404, resolve, reverse

from channels_app import sealing
from channels_app.steps import accept_invitation

__all__ = ["Accounts", "SecondFactors", "SignIn", "VerifyAddress", "secure_admin_login"]


class Accounts(DefaultAccountAdapter):
    """Who may sign up, and where people go."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Everybody if the operator wants that, else whoever comes from an invitation's link."""
        if settings.SIGNUP == "open":
            return True
        return _is_invitation(request.POST.get("next") or request.GET.get("next") or "")

    def get_login_redirect_url(self, request: HttpRequest) -> str:
        """Operators of no team to the console, all others to their team."""
        user: Any = request.user
        if user.is_staff and not user.memberships.exists():
            return reverse("admin:index")
        return reverse("portal:choose")

    def get_login_stages(self) -> list[str]:
        """What stands between a password and the inside."""
        ours = f"{VerifyAddress.__module__}.{VerifyAddress.__name__}"
        stages = super().get_login_stages()
        return [ours if stage.endswith("EmailVerificationStage") else stage for stage in stages]


class SignIn(LoginForm):
    """The form behind the one door, in our words."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Label what allauth calls a login."""
        super().__init__(*args, **kwargs)
        self.fields["login"].label = "User name or e-mail"
        self.fields["remember"].label = "Stay signed in"


class VerifyAddress(EmailVerificationStage):
    """Operators come in without: they were made by hand, and mail may be what they have to mend."""

    def handle(self) -> Any:
        """Ask for the address to be verified, unless it is an operator's."""
        user = self.login.user
        return (None, True) if user is not None and user.is_staff else super().handle()


class SecondFactors(DefaultMFAAdapter):
    """Secrets of second factors, sealed as everything is that opens something."""

    def encrypt(self, text: str) -> str:
        """As it is stored."""
        return sealing.seal_second_factor(text)

    def decrypt(self, encrypted_text: str) -> str:
        """What ``encrypt`` sealed."""
        return sealing.open_second_factor(encrypted_text)


def _is_invitation(path: str) -> bool:
    """Whether somebody may still join by this link."""
    try:
        match = resolve(path)
    except Resolver404:
        return False
    if match.view_name != "portal:join":
        return False
    return accept_invitation.waiting(match.kwargs["token"]) is not None
