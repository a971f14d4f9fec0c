"""A web application as the worker: the broker calls it, and each request is a task (README.md)."""

from after import app as shop
from flask import Flask

app = Flask(__name__)
app.register_blueprint(shop.flask_blueprint("/tasks"))
