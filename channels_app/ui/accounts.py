"""Accounts: how allauth lets people in, what it may not decide by itself, and what it did."""

from collections.abc import Mapping
from typing import Any

from allauth.account import forms as account_forms
from allauth.account import signals as account
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.decorators import secure_admin_login
from allauth.account.stages import EmailVerificationStage
from allauth.mfa import signals as mfa
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.base import forms as mfa_forms
from allauth.mfa.totp.forms import ActivateTOTPForm
from django.conf import settings
from django.http import HttpRequest
from django.urls import Resolver404, resolve, reverse

from channels_app import data_encryption
from channels_app.models import AuditEntry
from channels_app.steps import teams

__all__ = ["Accounts", "SecondFactors", "SignIn", "VerifyAddress", "secure_admin_login"]


class Accounts(DefaultAccountAdapter):
    """Who may sign up, and where people go."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Everybody if the operator wants that, else whoever comes from an invitation's link."""
        if settings.SIGNUP == "open":
            return True
        token = _invitation(request)
        return token is not None and teams.lets_sign_up(token)

    def save_user(self, request: HttpRequest, user: Any, form: Any, commit: bool = True) -> Any:
        """Make the account, and note by which invitation it came."""
        saved = super().save_user(request, user, form, commit)
        if token := _invitation(request):
            teams.note_sign_up(token, actor=f"user:{saved.get_username()}")
        return saved

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


_LABELS = {
    "login": "User name or e-mail",
    "remember": "Stay signed in",
    "username": "User name",
    "email": "E-mail address",
    "oldpassword": "Current password",
    "password2": "The same password again",
    "code": "Code",
}
_GOOD_ONES = "At least ten characters, not a common password and not similar to your name."


class _PlainMessages:
    """A form of allauth with our labels, and without placeholders that say the same again."""

    fields: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            field.label = _LABELS.get(name, str(field.label).capitalize())
            field.widget.attrs.pop("placeholder", None)
        if "password1" in self.fields:
            self.fields["password1"].help_text = _GOOD_ONES


class SignIn(_PlainMessages, account_forms.LoginForm):
    """The form behind the one door."""


class SignUp(_PlainMessages, account_forms.SignupForm):
    """A new account."""


class Address(_PlainMessages, account_forms.AddEmailForm):
    """Another e-mail address."""


class Password(_PlainMessages, account_forms.ChangePasswordForm):
    """Another password."""


class Forgotten(_PlainMessages, account_forms.ResetPasswordForm):
    """Where the link for a new password goes."""


class NewPassword(_PlainMessages, account_forms.ResetPasswordKeyForm):
    """The password of somebody who came by that link."""


class Again(_PlainMessages, account_forms.ReauthenticateForm):
    """The password once more."""


class Code(_PlainMessages, mfa_forms.AuthenticateForm):
    """The second factor."""


class CodeAgain(_PlainMessages, mfa_forms.ReauthenticateForm):
    """The second factor once more."""


class FirstCode(_PlainMessages, ActivateTOTPForm):
    """The proof that an app has the secret."""


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
        return data_encryption.encrypt_second_factor(text)

    def decrypt(self, encrypted_text: str) -> str:
        """What ``encrypt`` sealed."""
        return data_encryption.decrypt_second_factor(encrypted_text)


def _invitation(request: HttpRequest) -> str | None:
    """The secret of the invitation that this person comes from and goes back to."""
    try:
        match = resolve(request.POST.get("next") or request.GET.get("next") or "")
    except Resolver404:
        return None
    return match.kwargs["token"] if match.view_name == "portal:join" else None


_PASSWORDS = {
    account.password_changed: "user.change_password",
    account.password_reset: "user.reset_password",
    account.password_set: "user.set_password",
}
_ADDRESSES = {account.email_added: "email.add", account.email_removed: "email.remove"}
_FACTORS = {
    mfa.authenticator_added: "second_factor.add",
    mfa.authenticator_removed: "second_factor.remove",
    mfa.authenticator_reset: "second_factor.reset",
}


def _password(signal: Any, request: HttpRequest, user: Any, **more: Any) -> None:
    _record(request, user, _PASSWORDS[signal], f"user:{user.get_username()}")


def _address(signal: Any, request: HttpRequest, user: Any, email_address: Any, **more: Any) -> None:
    _record(request, user, _ADDRESSES[signal], f"email:{email_address.email}")


def _main_address(
    request: HttpRequest, user: Any, from_email_address: Any, to_email_address: Any, **more: Any
) -> None:
    before = {"email": from_email_address.email if from_email_address else None}
    after = {"email": to_email_address.email}
    _record(request, user, "user.change_email", f"user:{user.get_username()}", before, after)


def _factor(signal: Any, request: HttpRequest, user: Any, authenticator: Any, **more: Any) -> None:
    target = f"second_factor:{authenticator.user}/{authenticator.type}"
    _record(request, user, _FACTORS[signal], target)


def _record(
    request: HttpRequest,
    user: Any,
    action: str,
    target: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    # Who comes by a link from an e-mail has not signed in.
    person: Any = request.user if request.user.is_authenticated else user
    AuditEntry.record(f"user:{person.get_username()}", action, target, before=before, after=after)


account.email_changed.connect(_main_address)
for _signals, _receiver in ((_PASSWORDS, _password), (_ADDRESSES, _address), (_FACTORS, _factor)):
    for _signal in _signals:
        _signal.connect(_receiver)
