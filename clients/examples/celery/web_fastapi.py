"""A web application as the worker: the broker calls it, and each request is a task (README.md)."""

from after import app
from fastapi import FastAPI

api = FastAPI()
api.include_router(app.fastapi_router("/tasks"))
