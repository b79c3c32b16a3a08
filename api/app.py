"""The application: which path does what. Knows nothing of how it is done."""

from importlib.metadata import version
from typing import Annotated, Final, cast

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from tokenmark.api.body_limit import BodyLimit
from tokenmark.api.errors import ApiError, ErrorCode, add_error_handlers
from tokenmark.api.generation import Generation, GenerationService, ServedModel
from tokenmark.api.replies import ChatReplies, Replies, TextReplies
from tokenmark.api.response_schemas import (
    ChatCompletion,
    ErrorBody,
    ModelCard,
    ModelList,
    TextCompletion,
)
from tokenmark.api.schemas import ChatRequest, CompletionRequest, GenerationRequest
from tokenmark.api.stream import EventStream, unless_disconnected, whole_response

__all__ = ["create_app"]


def create_app(model: ServedModel) -> FastAPI:
    """The application that serves a model whose engine is running; the caller stops the engine."""
    app = FastAPI(
        title="Tokenmark",
        version=version("tokenmark"),
        # The pages of the framework load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = GenerationService(model)
    app.include_router(_ROUTER)
    add_error_handlers(app)
    app.add_middleware(BodyLimit)
    return app


def _service(request: Request) -> GenerationService:
    return cast("GenerationService", request.app.state.service)


def _require_json(request: Request) -> None:
    """Refuse other types of content, which browsers send across origins without asking."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "the body must be sent with the header Content-Type: application/json",
        )


Service = Annotated[GenerationService, Depends(_service)]

_ROUTER: Final = APIRouter(responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}})


@_ROUTER.get("/v1/models")
async def list_models(service: Service) -> ModelList:
    """All models that can be asked for."""
    return ModelList(data=[service.model_card])


@_ROUTER.get("/v1/models/{model_id:path}")
async def get_model(model_id: str, service: Service) -> ModelCard:
    """One model."""
    service.check_model(model_id)
    return service.model_card


@_ROUTER.post(
    "/v1/completions", response_model=TextCompletion, dependencies=[Depends(_require_json)]
)
async def create_completion(
    body: CompletionRequest, request: Request, service: Service
) -> Response:
    """Continue one or several prompts."""
    generation = await unless_disconnected(request.receive, service.complete(body))
    return await _respond(generation, TextReplies(body.model), body, request)


@_ROUTER.post(
    "/v1/chat/completions", response_model=ChatCompletion, dependencies=[Depends(_require_json)]
)
async def create_chat_completion(body: ChatRequest, request: Request, service: Service) -> Response:
    """Write the next message of a chat."""
    generation = await unless_disconnected(request.receive, service.chat(body))
    return await _respond(generation, ChatReplies(body.model), body, request)


async def _respond(
    generation: Generation, replies: Replies, body: GenerationRequest, request: Request
) -> Response:
    if body.stream:
        return EventStream(generation, replies, include_usage=body.include_usage)
    return await whole_response(generation, replies, request.receive)


@_ROUTER.get("/healthz", response_class=PlainTextResponse)
@_ROUTER.get("/readyz", response_class=PlainTextResponse)
async def check_health(service: Service) -> str:
    """Whether the engine takes requests."""
    if not service.is_healthy:
        raise ApiError(ErrorCode.ENGINE_STOPPED, "the engine has stopped; see the server's log")
    return "ok\n"


@_ROUTER.get("/metrics")
async def get_metrics(service: Service) -> Response:
    """The engine's metrics in the text format of Prometheus."""
    return Response(service.metrics(), media_type=CONTENT_TYPE_LATEST)
