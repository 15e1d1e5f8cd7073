"""What a session refuses, as one exception that names the node or tensor at fault."""


class ModelError(ValueError):
    """A model or an input that cannot be run. `where` names the node or tensor, `problem` says what is wrong."""

    def __init__(self, where: str, problem: str):
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem
