//! What a client is told when something does not work, in OpenAI's shape.
//!
//! ```text
//! ApiError { status, kind, code, param, message } ─► {"error": {"message", "type", "param", "code"}} (+ Retry-After)
//! ```

use crate::keys::Refusal;
use crate::pace::{Pace, whole_seconds};
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Value, json};

/// An error on its way to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// OpenAI's `type`.
    pub(crate) kind: &'static str,
    /// OpenAI's `code`.
    pub(crate) code: Option<&'static str>,
    /// The parameter at fault.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    /// Seconds after which to try again.
    pub(crate) retry_after: Option<u32>,
}

const INVALID: &str = "invalid_request_error";

/// Most bytes of a message, and of a parameter's name: both may repeat what a client has sent.
const MESSAGE_BYTES: usize = 2000;
const NAME_BYTES: usize = 100;

/// A text, or its beginning.
pub(crate) fn clip(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: Option<&'static str>, message: impl Into<String>) -> ApiError {
        let message = clip(message.into(), MESSAGE_BYTES);
        ApiError { status, kind, code, param: None, message, retry_after: None }
    }

    /// 400: the request makes no sense.
    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, INVALID, None, message)
    }

    /// 400: this parameter makes no sense.
    pub(crate) fn parameter(name: &str, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(clip(name.to_owned(), NAME_BYTES)), ..ApiError::invalid(message) }
    }

    /// 400: a parameter that means something elsewhere and nothing here.
    pub(crate) fn unsupported(name: &str, why: &str) -> ApiError {
        let message = format!("`{name}` is not supported by this server{why}; leave it out");
        ApiError { code: Some("unsupported_parameter"), ..ApiError::parameter(name, message) }
    }

    /// 400: a parameter that nobody knows.
    pub(crate) fn unknown(name: &str, known: &[&str]) -> ApiError {
        let (name, known) = (clip(name.to_owned(), NAME_BYTES), known.join(", "));
        let message = format!("`{name}` is not a parameter that this server knows; leave it out (it knows: {known})");
        ApiError { code: Some("unknown_parameter"), ..ApiError::parameter(&name, message) }
    }

    /// 400: prompt and answer do not fit the context.
    pub(crate) fn context(needed: u64, prompt: u64, predict: u64, available: u64) -> ApiError {
        let message = format!(
            "this model's context is {available} tokens, but {needed} are needed: {prompt} of the prompt and {predict} to \
             generate; shorten the prompt or ask for fewer tokens"
        );
        ApiError { code: Some("context_length_exceeded"), ..ApiError::invalid(message) }
    }

    /// 401: a key that has been right.
    pub(crate) fn expired() -> ApiError {
        ApiError { code: Some("expired_api_key"), ..ApiError::unauthorized("the API key has expired") }
    }

    /// 401: no key, or a wrong one.
    pub(crate) fn unauthorized(message: &str) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, INVALID, Some("invalid_api_key"), message)
    }

    /// 403: a page of another site asks.
    pub(crate) fn forbidden(message: &str) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", Some("forbidden"), message)
    }

    /// 404: no such path.
    pub(crate) fn no_route(method: &str, path: &str) -> ApiError {
        let message = format!(
            "there is nothing at {} {}",
            clip(method.to_owned(), NAME_BYTES),
            clip(path.to_owned(), NAME_BYTES)
        );
        ApiError::new(StatusCode::NOT_FOUND, INVALID, Some("unknown_url"), message)
    }

    /// 405: the path knows other methods.
    pub(crate) fn no_method(method: &str, path: &str) -> ApiError {
        let message = format!("{path} does not take {method}");
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, Some("method_not_allowed"), message)
    }

    /// 404: no such model.
    pub(crate) fn no_model(asked: &str, known: &[String]) -> ApiError {
        let message = format!(
            "the model `{}` does not exist; this server has: {}",
            clip(asked.to_owned(), NAME_BYTES),
            known.join(", ")
        );
        let error = ApiError::new(StatusCode::NOT_FOUND, INVALID, Some("model_not_found"), message);
        ApiError { param: Some("model".into()), ..error }
    }

    /// 408: the request did not come in time.
    pub(crate) fn too_slow() -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, INVALID, Some("request_timeout"), "the request's body took too long")
    }

    /// 413: more bytes than are taken.
    pub(crate) fn too_large(limit: usize) -> ApiError {
        let message = format!("the request's body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, Some("request_too_large"), message)
    }

    /// The code of [`ApiError::crowded`].
    pub(crate) const CROWDED: &str = "no_memory_for_request";

    /// 503: other requests' bodies take all memory that there is for them. They are parsed soon, or their time ends.
    pub(crate) fn crowded() -> ApiError {
        let message = "the requests that are being read take all memory set aside for that; try again later";
        ApiError { code: Some(ApiError::CROWDED), retry_after: Some(2), ..ApiError::unavailable(message) }
    }

    /// 429: the queue is full, for so many seconds most likely.
    pub(crate) fn overloaded(seconds: u32) -> ApiError {
        let error = ApiError::busy("the server's queue is full; try again later");
        ApiError { code: Some("queue_full"), retry_after: Some(seconds), ..error }
    }

    /// 429: the key may not have more now; 400: it never may. `pace`: how long until some of what it has ends.
    pub(crate) fn refused(refusal: &Refusal, pace: &Pace) -> ApiError {
        let limited = |kind, message: String, seconds| {
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, kind, Some("rate_limit_exceeded"), message);
            ApiError { retry_after: Some(seconds), ..error }
        };
        match *refusal {
            Refusal::Requests { limit, wait } => {
                let message =
                    format!("the key's limit of {limit} requests a minute is reached; try again in {wait:.1?}");
                limited("requests", message, whole_seconds(wait))
            }
            Refusal::Tokens { limit, asked, wait } => {
                let message = format!(
                    "the key's limit of {limit} tokens a minute is reached: {asked} are asked for; try again in {wait:.1?}"
                );
                limited("tokens", message, whole_seconds(wait))
            }
            Refusal::Parallel { limit } => {
                let message = format!("the key may have {limit} answers at the same time; wait for one to end");
                limited("requests", message, pace.wait(1))
            }
            Refusal::Never { limit, asked } => {
                let message = format!(
                    "{asked} answers are asked for, but the key may have {limit} at the same time; ask for fewer in one \
                     request"
                );
                ApiError::parameter("n", message)
            }
            Refusal::Quota { period, limit, used, asked, wait } => {
                let message = format!(
                    "the key's quota of {limit} tokens in {period} is used up: {used} are used or reserved, and {asked} are \
                     asked for"
                );
                const QUOTA: &str = "insufficient_quota";
                let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, QUOTA, Some(QUOTA), message);
                ApiError { retry_after: wait.map(whole_seconds), ..error }
            }
        }
    }

    /// 429: something else must end first.
    pub(crate) fn busy(message: &str) -> ApiError {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("busy"), message);
        ApiError { retry_after: Some(2), ..error }
    }

    /// 503: there is no model to answer, now or any more.
    pub(crate) fn unavailable(message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("unavailable"), message);
        ApiError { retry_after: Some(5), ..error }
    }

    /// 503: the device is lost, and does not come back.
    pub(crate) fn lost(why: &str) -> ApiError {
        let message = format!("the device is gone, and the server must be started again: {why}");
        ApiError { code: Some("device_lost"), ..ApiError::unavailable(message) }
    }

    /// 503: the device is lost and being opened again.
    pub(crate) fn recovering(why: &str) -> ApiError {
        let message = format!("device lost, recovering: {why}");
        ApiError { code: Some("device_lost"), ..ApiError::unavailable(message) }
    }

    /// 500: the engine failed.
    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", Some("internal_error"), message)
    }

    /// The body.
    pub(crate) fn json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = json_response(&self.json());
        *response.status_mut() = self.status;
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A 200 with a JSON body.
pub(crate) fn json_response(value: &impl Serialize) -> Response<Body> {
    // What has texts as keys, as all responses do, cannot fail to be written.
    let mut response = Response::new(Body::from(serde_json::to_vec(value).unwrap_or_default()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
