"""A web application as a worker: the broker sends each task as a request (README.md)."""

from after import app
from fastapi import FastAPI

api = FastAPI()
api.include_router(app.fastapi_router("/tasks"))
