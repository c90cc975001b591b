"""Convolutional networks beside the quickstart's: AlexNet, VGG-19, Inception-v3, from their arithmetic.

They are what the papers on the traffic of training measure with: few huge tensors (AlexNet, VGG) or many
small ones (Inception), which decides what partitioning and fusing can gain.
"""

from __future__ import annotations

from netsched.workloads.tensors import Tensor, linear, norm, vector


def alexnet(_: int = 0) -> tuple[Tensor, ...]:
    """Krizhevsky, "One weird trick" (2014): the single-column AlexNet, as in torchvision (224 x 224 pixels).

    The two-column network of the paper of 2012 has 62.4 million parameters with its split joined, 60.97
    million with it.
    """
    table: list[Tensor] = []
    shapes = ((3, 64, 11, 55), (64, 192, 5, 27), (192, 384, 3, 13), (384, 256, 3, 13), (256, 256, 3, 13))
    for number, (inputs, outputs, kernel, side) in enumerate(shapes, start=1):
        table.append(_conv(f"conv{number}", inputs, outputs, (kernel, kernel), side))
        table.append(vector(f"conv{number}.bias", outputs, outputs * side * side))
    for name, n_in, n_out in (("fc1", 256 * 6 * 6, 4096), ("fc2", 4096, 4096), ("fc3", 4096, 1000)):
        table.extend(linear(name, n_in, n_out))
    return tuple(table)


def vgg(depths: tuple[int, int, int, int, int]) -> tuple[Tensor, ...]:
    """Simonyan and Zisserman (ICLR 2015), table 1: five groups of 3 x 3 convolutions, three dense layers."""
    table: list[Tensor] = []
    inputs, side, number = 3, 224, 0
    for outputs, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _layer in range(depth):
            number += 1
            table.append(_conv(f"conv{number}", inputs, outputs, (3, 3), side))
            table.append(vector(f"conv{number}.bias", outputs, outputs * side * side))
            inputs = outputs
        side //= 2
    for name, n_in, n_out in (("fc1", 512 * 7 * 7, 4096), ("fc2", 4096, 4096), ("fc3", 4096, 1000)):
        table.extend(linear(name, n_in, n_out))
    return tuple(table)


def inception_v3(auxiliary: bool) -> tuple[Tensor, ...]:
    """Szegedy et al., "Rethinking the Inception Architecture" (CVPR 2016), as in torchvision: 299 pixels.

    `auxiliary`: with the classifier on the side that torchvision's default has while it trains. Its place
    in the forward order is after the last block of 17 x 17, which it reads.
    """
    net = _Net()
    net.row("stem", 3, (32, 3, 149), (32, 3, 147), (64, 3, 147), (80, 1, 73), (192, 3, 71))
    inputs = 192
    for number, pooled in enumerate((32, 64, 64)):
        inputs = net.block_a(f"a{number}", inputs, pooled)
    inputs = net.reduce_b("b", inputs)
    for number, middle in enumerate((128, 160, 160, 192)):
        inputs = net.block_c(f"c{number}", inputs, middle)
    if auxiliary:
        net.row("aux", inputs, (128, 1, 5), (768, 5, 1))
        net.table.extend(linear("aux.fc", 768, 1000))
    inputs = net.reduce_d("d", inputs)
    for number in range(2):
        inputs = net.block_e(f"e{number}", inputs)
    return (*net.table, *linear("fc", inputs, 1000))


Unit = tuple[int, int | tuple[int, int], int]
"""Outputs, kernel (one figure where it is square) and the side of the output."""


class _Net:
    """The table so far. Every convolution is without bias and has a batch normalisation after it.

    A block returns the channels that its branches have together.
    """

    def __init__(self) -> None:
        self.table: list[Tensor] = []

    def row(self, name: str, inputs: int, *units: Unit) -> int:
        """Convolutions one after the other; returns the channels of the last."""
        for number, (outputs, kernel, side) in enumerate(units):
            size = (kernel, kernel) if isinstance(kernel, int) else kernel
            self.table.append(_conv(f"{name}.{number}.conv", inputs, outputs, size, side))
            self.table.extend(norm(f"{name}.{number}.bn", outputs, outputs * side * side))
            inputs = outputs
        return inputs

    def block_a(self, name: str, n: int, pooled: int) -> int:
        """Figure 5 of the paper, at 35 x 35."""
        return (
            self.row(f"{name}.1x1", n, (64, 1, 35))
            + self.row(f"{name}.5x5", n, (48, 1, 35), (64, 5, 35))
            + self.row(f"{name}.double", n, (64, 1, 35), (96, 3, 35), (96, 3, 35))
            + self.row(f"{name}.pool", n, (pooled, 1, 35))
        )

    def reduce_b(self, name: str, n: int) -> int:
        """From 35 x 35 to 17 x 17; a third branch only pools."""
        return (
            self.row(f"{name}.3x3", n, (384, 3, 17))
            + self.row(f"{name}.double", n, (64, 1, 35), (96, 3, 35), (96, 3, 17))
            + n
        )

    def block_c(self, name: str, n: int, m: int) -> int:
        """Figure 6, at 17 x 17, with kernels of 1 x 7 and 7 x 1."""
        wide, tall = (1, 7), (7, 1)
        return (
            self.row(f"{name}.1x1", n, (192, 1, 17))
            + self.row(f"{name}.7x7", n, (m, 1, 17), (m, wide, 17), (192, tall, 17))
            + self.row(
                f"{name}.double", n, (m, 1, 17), (m, tall, 17), (m, wide, 17), (m, tall, 17), (192, wide, 17)
            )
            + self.row(f"{name}.pool", n, (192, 1, 17))
        )

    def reduce_d(self, name: str, n: int) -> int:
        """From 17 x 17 to 8 x 8; a third branch only pools."""
        return (
            self.row(f"{name}.3x3", n, (192, 1, 17), (320, 3, 8))
            + self.row(f"{name}.7x7", n, (192, 1, 17), (192, (1, 7), 17), (192, (7, 1), 17), (192, 3, 8))
            + n
        )

    def block_e(self, name: str, n: int) -> int:
        """Figure 7, at 8 x 8: two branches fork into 1 x 3 and 3 x 1."""
        total = self.row(f"{name}.1x1", n, (320, 1, 8))
        for branch, units in (("3x3", [(384, 1, 8)]), ("double", [(448, 1, 8), (384, 3, 8)])):
            inputs = self.row(f"{name}.{branch}", n, *units)
            total += self.row(f"{name}.{branch}.wide", inputs, (384, (1, 3), 8))
            total += self.row(f"{name}.{branch}.tall", inputs, (384, (3, 1), 8))
        return total + self.row(f"{name}.pool", n, (192, 1, 8))


def _conv(name: str, inputs: int, outputs: int, kernel: tuple[int, int], side: int) -> Tensor:
    high, wide = kernel
    flops = 2.0 * outputs * inputs * high * wide * side * side
    return Tensor(f"{name}.weight", (outputs, inputs, high, wide), flops)
