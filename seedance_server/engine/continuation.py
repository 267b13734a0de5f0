"""How an interrupted answer is taken up: its tokens are lived through again, and then it goes on.

The invariant: for every n, the outputs of a request that brings its first n tokens along are those that the
same request, uninterrupted, has after its n-th token. It holds because all that an answer's next token and
next text depend on follows from the ids alone: keys and values, penalties, the position of the random draw,
the characters and stop strings that are half there. Nothing else is kept, so there is nothing to save.

It costs what detokenising costs, some 10 microseconds a token. It knows no journal and no model.
"""

from seedance_server.engine.errors import ContinuationMismatch, InvalidParameter
from seedance_server.engine.generation import Generation
from seedance_server.engine.sequence import GenerationRequest, SequenceOutput

__all__ = ["check_ids", "take_up"]


def check_ids(request: GenerationRequest, vocab_size: int) -> None:
    """Refuse tokens that the model doesn't have.

    Raises:
        InvalidParameter: In the prompt.
        ContinuationMismatch: In what was generated: by another model, then.
    """
    if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocab_size:
        raise InvalidParameter("token_ids", f"must be from 0 to {vocab_size - 1}")
    generated = request.generated_ids
    if generated and not 0 <= min(generated) <= max(generated) < vocab_size:
        raise ContinuationMismatch(f"it holds tokens beyond the {vocab_size} of this one")


def take_up(generation: Generation) -> SequenceOutput | None:
    """Accept the tokens that a request brings along.

    Args:
        generation: A new one; nothing is accepted yet.

    Returns:
        The end, without tokens, if they end the answer already; None if it goes on.

    Raises:
        ContinuationMismatch: The answer should have ended before its last token, or its text isn't the one
            that was delivered.
    """
    request = generation.sequence.request
    finish, text = None, ""
    for number, token_id in enumerate(request.generated_ids, 1):
        if finish is not None:
            raise ContinuationMismatch(f"it ends with token {number - 1} of {len(request.generated_ids)}")
        output = generation.accept(token_id)
        finish, text = output.finish, text + output.text
    delivered = text if request.delivered_text is None else request.delivered_text
    # An answer that ends only here, since the context became shorter, still owes what it held back.
    if text != delivered and not (finish is not None and text.startswith(delivered)):
        raise ContinuationMismatch("its tokens give another text")
    if finish is None:
        return None
    return SequenceOutput(id=request.id, text=text[len(delivered) :], finish=finish)
