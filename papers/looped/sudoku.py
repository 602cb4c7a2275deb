"""Sudoku of 4, 6 or 9 digits with one solution each, generated and solved by bits."""

import numpy as np

__all__ = ["BOXES", "puzzle", "solutions"]

#: Rows and columns of a box, by the number of digits.
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def puzzle(rng: np.random.Generator, size: int, clues: int) -> tuple[np.ndarray, np.ndarray]:
    """A puzzle, 0 where a cell is blank, and its only solution, digits 1 to ``size``; both (size, size).

    Cells of a random grid are blanked in random order while the solution stays the only one, until ``clues`` are left;
    more are left where no cell can go.

    Raises:
      ValueError: if there are no boxes for the size.
    """
    if size not in BOXES:
        raise ValueError(f"size must be one of {list(BOXES)}, got {size}")
    solution = _grid(rng, size)
    board, left = solution.copy(), size * size
    for cell in rng.permutation(size * size):
        if left == clues:
            break
        place = divmod(int(cell), size)
        board[place] = 0
        if solutions(board, 2) == 1:
            left -= 1
        else:
            board[place] = solution[place]
    return board, solution


def solutions(board: np.ndarray, most: int) -> int:
    """The number of solutions of a board, up to ``most``, by depth-first search on the cell of fewest digits."""
    size = len(board)
    height, width = BOXES[size]
    groups = [
        (row, size + column, 2 * size + row // height * (size // width) + column // width)
        for row in range(size)
        for column in range(size)
    ]
    used, blanks = [0] * (3 * size), []
    for cell, digit in enumerate(board.ravel().tolist()):
        if digit:
            for group in groups[cell]:
                used[group] |= 1 << digit
        else:
            blanks.append(cell)
    every = (1 << size + 1) - 2

    def free(cell: int) -> int:
        row, column, box = groups[cell]
        return every & ~(used[row] | used[column] | used[box])

    def count(most: int) -> int:
        if not blanks:
            return 1
        place = min(range(len(blanks)), key=lambda place: free(blanks[place]).bit_count())
        cell = blanks.pop(place)
        digits, total = free(cell), 0
        while digits and total < most:
            bit = digits & -digits
            digits ^= bit
            for group in groups[cell]:
                used[group] ^= bit
            total += count(most - total)
            for group in groups[cell]:
                used[group] ^= bit
        blanks.insert(place, cell)
        return total

    return count(most)


def _grid(rng: np.random.Generator, size: int) -> np.ndarray:
    """A shifted pattern whose digits, rows and columns are shuffled, rows and columns within their bands too."""
    height, width = BOXES[size]
    row, column = np.indices((size, size))
    pattern = (width * (row % height) + row // height + column) % size

    def order(band: int) -> np.ndarray:
        bands = rng.permutation(size // band)
        return np.concatenate([place * band + rng.permutation(band) for place in bands])

    return rng.permutation(size)[pattern[order(height)][:, order(width)]] + 1
