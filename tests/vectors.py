"""What an optimizer trains and keeps, as vectors that tests compare."""

import torch


def state(opt):
    """All that rounds average, as one vector."""
    message = torch.zeros(opt.trained.size, dtype=opt.trained.dtype)
    with torch.no_grad():
        opt.trained.pack(message)
    return message


def primal(opt):
    """v = (w, a, b)."""
    return state(opt)[: opt.trained.steered_size - opt.loss.tasks]


def average(opt):
    """The average of v over the stage's steps."""
    return torch.cat([tensor.detach().flatten() for tensor in opt.result])


def anchor(opt):
    """Where the stage began: of v."""
    kept = [opt.state[weight]["anchor"] for weight in opt.trained.weights]
    return torch.cat([tensor.flatten() for tensor in (*kept, opt.own["anchor"])])
