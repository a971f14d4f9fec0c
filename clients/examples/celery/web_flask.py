"""A web application as a worker: the broker sends each task as a request (README.md)."""

from after import app as shop
from flask import Flask

app = Flask(__name__)
app.register_blueprint(shop.flask_blueprint("/tasks"))
