"""What happens to an order after the API has accepted it: `poolkeeper worker handlers:app --queue orders`."""

from pydantic import BaseModel

from poolkeeper import Context, Poolkeeper

app = Poolkeeper()


class Shipment(BaseModel):
    order: int


@app.task("orders.ship")
async def ship(shipment: Shipment, ctx: Context) -> str:
    ctx.log.info("order %d leaves the house", shipment.order)
    return f"parcel {shipment.order}"
