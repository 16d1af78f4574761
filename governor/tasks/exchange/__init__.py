"""What both sides of a runner share: messages, values, tickets, deaths. Light: user code loads it in every runner."""
